"""Who may ask, over HTTP: settings, listeners, access, schemas, routes."""
