"""One run: environments, agents, contracts, scoring, and the processes that host them."""
