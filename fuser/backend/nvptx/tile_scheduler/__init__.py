"""Which block computes which tile: the raster, persistent blocks, stream-k, load balance."""
