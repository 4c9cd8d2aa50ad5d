"""Statistics of repeated pass/fail runs with the task as the sampling unit; arrays in, frozen results out."""
