"""Minfer-jax inside other tools. Each module here needs an optional extra, and nothing else imports it."""
