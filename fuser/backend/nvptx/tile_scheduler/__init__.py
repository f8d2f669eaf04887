"""Which block computes which tile: schedulers of tiles and the loop over them, the raster."""
