"""Stages as pods: what a pod looks like, how it is started and watched, and what a cluster lacks for it."""
