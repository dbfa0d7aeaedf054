"""Packages of model-boss: a Debian package, a wheel and a container image. `scripts/package` runs it."""
