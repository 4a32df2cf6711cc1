#!/usr/bin/env bash
exec /usr/bin/python3 -B tests/tools/junit_main.py "$1"
