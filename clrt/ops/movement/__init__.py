"""Ops that only move elements."""
