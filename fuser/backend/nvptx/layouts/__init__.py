"""Layouts: which thread holds what, how they are assigned, and how tiles move from one to
another."""
