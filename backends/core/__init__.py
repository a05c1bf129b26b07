"""What every tool and backend stands on: settings, errors, plans, operations, audit, rendering."""
