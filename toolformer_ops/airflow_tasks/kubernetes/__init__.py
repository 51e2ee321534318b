"""Stages as pods: what a pod looks like, how it is started and watched, what it answers, what a cluster lacks for it."""
