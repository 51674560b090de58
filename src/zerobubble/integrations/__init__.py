"""Models of other libraries as layers of a pipeline; each needs its own extra."""
