"""What every connector needs, whatever the engine: looking up, what a load
costs, what is held, reserving ahead, explaining, counting. Nothing here knows
an engine (scripts/tidy)."""
