"""What the Tile IR and the GPU IR share: records, text, parser and the walk of verifiers."""
