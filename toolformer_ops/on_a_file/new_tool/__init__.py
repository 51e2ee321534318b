"""Write the first version of a tool file."""
