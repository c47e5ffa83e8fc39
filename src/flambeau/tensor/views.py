"""Views: other layouts over the same memory."""
