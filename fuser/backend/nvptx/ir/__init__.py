"""The GPU IR: a kernel as blocks of threads run it. See README.md of this folder."""
