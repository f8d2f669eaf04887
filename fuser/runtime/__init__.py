"""Plans: ordered launches, one memory arena, constants; run, profile, cache."""
