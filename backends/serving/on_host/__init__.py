"""The program that runs on a virtual machine: prepares it, serves on it, says how it is.

It is copied there as one file (a zip that Python runs) and needs nothing but Python 3.9: nothing
here imports anything else, and nothing here is imported by the server but its pure parts. What it
prints is one JSON object a line; what commands print stands between, after `| `.

    python3 vllm-devops.pyz prepare [--check] < settings.json
    python3 vllm-devops.pyz serve start | stop | status
    python3 vllm-devops.pyz clamp check | apply FILE
    python3 vllm-devops.pyz facts
"""
