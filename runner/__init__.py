"""Files, plans, campaigns, reports and the command line: everything around a run."""
