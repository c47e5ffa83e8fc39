"""Experimental tools for graphs."""
