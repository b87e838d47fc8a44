CREATE TABLE audit (
  id $identity,
  at DOUBLE PRECISION NOT NULL,
  who TEXT NOT NULL,
  action TEXT NOT NULL,
  changes TEXT NOT NULL,
  undoes BIGINT
);

CREATE INDEX audit_undone ON audit (undoes);

CREATE TABLE tenants (
  name TEXT PRIMARY KEY,
  revision BIGINT NOT NULL,
  settings TEXT NOT NULL,
  keys TEXT NOT NULL
);

-- One record for each tenant and hour in which it did something.
CREATE TABLE tenant_usage (
  hour BIGINT NOT NULL,
  tenant $exact_text NOT NULL,
  completed BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  rejected BIGINT NOT NULL,
  evicted BIGINT NOT NULL,
  cancelled BIGINT NOT NULL,
  input_tokens BIGINT NOT NULL,
  output_tokens BIGINT NOT NULL,
  dispatched BIGINT NOT NULL,
  wait_s DOUBLE PRECISION NOT NULL,
  longest_wait_s DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (hour, tenant)
) $clustered;

CREATE TABLE tenant_refusals (
  hour BIGINT NOT NULL,
  tenant $exact_text NOT NULL,
  reason TEXT NOT NULL,
  requests BIGINT NOT NULL,
  PRIMARY KEY (hour, tenant, reason)
) $clustered;
