-- The schema of Queen: shared tables. Applied first, at every boot, create-only and idempotent.
CREATE SCHEMA IF NOT EXISTS queen;
