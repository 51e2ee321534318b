"""Tools that a server of somebody else offers: the file that names one, its calls, its connection."""
