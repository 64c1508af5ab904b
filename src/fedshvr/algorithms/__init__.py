"""What the papers say: objectives, corrections and aggregations. Nothing about speed."""
