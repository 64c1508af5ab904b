"""How it is made fast; a reader of the algorithms may skip it."""
