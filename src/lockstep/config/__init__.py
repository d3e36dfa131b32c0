"""Typed specifications of what a user asks for, one file per noun."""
