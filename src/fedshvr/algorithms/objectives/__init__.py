"""Semi-supervised methods, one file each: a network and a batch in, a loss and its parts out."""
