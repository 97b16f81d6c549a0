"""The main job from end to end on a bundled task: lay out, serve, repair, grade, report. ``./run demo`` runs it."""
