"""Judge calls that something else proposed."""
