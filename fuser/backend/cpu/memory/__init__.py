"""Where values are, and how memory is read and written at points."""
