"""Runs of planning code over symbolic numbers, and the plan trees that such runs become."""
