"""From a graph to a plan: the stages in order, and what is kept of their work."""
