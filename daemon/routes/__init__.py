"""One thin module per noun of the API; no logic lives here."""
