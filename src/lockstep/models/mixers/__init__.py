"""Token mixers, one file each: every one maps [batch, time, dim] to the same shape."""
