"""Models on several devices: annotations read, checked and written."""
