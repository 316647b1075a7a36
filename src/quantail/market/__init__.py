"""Markets: bars and what can be seen in them, what trading costs, and the environment that puts the two together."""
