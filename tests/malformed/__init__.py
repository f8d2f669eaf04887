"""Models that are broken or hostile: each must end in one clear error, soon and without harm."""
