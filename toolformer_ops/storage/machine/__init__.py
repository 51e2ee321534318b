"""Files of this machine that several processes share."""
