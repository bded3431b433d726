"""Routers, one file per noun; each handler checks who asks, calls one service and answers with its view."""
