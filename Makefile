.PHONY: setup
setup:  ## install what building and testing need (idempotent)
	scripts/setup.sh
