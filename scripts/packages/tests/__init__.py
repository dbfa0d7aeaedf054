"""Tests of the packages: each is installed as its users do it, and runs."""
