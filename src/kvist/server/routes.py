"""All endpoints."""

from __future__ import annotations

from fastapi import APIRouter

from kvist.server import admin
from kvist.server.desk import Desk
from kvist.server.openai import models


def routers(desk: Desk) -> list[APIRouter]:
    """One router per file."""
    return [admin.router(desk), models.router(desk)]
