-- A role for brokers that owns nothing and creates nothing: docs/grants.md says why each right is needed.
--
--   queen schema apply                                  as the owner, now and after upgrades
--   psql -v role=queen_broker -f deploy/low-privilege-role.sql   as the owner
--
-- Give it a password of its own (\password queen_broker) and start the brokers with it.
\set ON_ERROR_STOP on
SELECT format('CREATE ROLE %I LOGIN', :'role') WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = :'role') \gexec
GRANT USAGE ON SCHEMA queen, queen_streams TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queen, queen_streams TO :"role";
GRANT USAGE ON ALL SEQUENCES IN SCHEMA queen, queen_streams TO :"role";
ALTER DEFAULT PRIVILEGES IN SCHEMA queen, queen_streams GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO :"role";
ALTER DEFAULT PRIVILEGES IN SCHEMA queen, queen_streams GRANT USAGE ON SEQUENCES TO :"role";
REVOKE INSERT, UPDATE, DELETE ON queen.schema_version, queen.schema_files FROM :"role";
