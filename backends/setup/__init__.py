"""What init.sh does for a cloud: logins, project, APIs, roles; shown, asked, done, skipped.

`python -m backends.setup --target TARGET` is called by init.sh. Each control plane has a part of
its own (`PARTS` in `__main__`); what is the same for all of them is the `Desk`.
"""
