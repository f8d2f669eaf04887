"""What every stage shares: limits, configuration, facts of targets, forks, imports."""
