CREATE TABLE files (
  no $identity,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  purpose TEXT NOT NULL,
  name TEXT NOT NULL,
  size BIGINT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION
);

CREATE INDEX files_of_tenant ON files (tenant, no);

CREATE TABLE batches (
  no $identity,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  input_file_id TEXT NOT NULL,
  completion_window TEXT NOT NULL,
  band TEXT NOT NULL,
  metadata TEXT NOT NULL,
  state TEXT NOT NULL,
  ending TEXT,
  total BIGINT NOT NULL DEFAULT 0,
  completed BIGINT NOT NULL DEFAULT 0,
  failed BIGINT NOT NULL DEFAULT 0,
  dead BIGINT NOT NULL DEFAULT 0,
  fresh BIGINT NOT NULL DEFAULT 0,
  fresh_line BIGINT NOT NULL DEFAULT 1,
  turn BIGINT NOT NULL DEFAULT 0,
  next_line BIGINT NOT NULL DEFAULT 1,
  next_offset BIGINT NOT NULL DEFAULT 0,
  errors TEXT NOT NULL DEFAULT '[]',
  output_file_id TEXT,
  error_file_id TEXT,
  planned_output TEXT,
  planned_error TEXT,
  redrive_of TEXT,
  created_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION NOT NULL,
  in_progress_at DOUBLE PRECISION,
  finalizing_at DOUBLE PRECISION,
  cancelling_at DOUBLE PRECISION,
  ended_at DOUBLE PRECISION,
  claim_token BIGINT,
  claim_owner TEXT,
  claim_until DOUBLE PRECISION,
  swept BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX batches_of_tenant ON batches (tenant, no);
CREATE INDEX batches_by_state ON batches (state, swept);
CREATE INDEX batches_by_input ON batches (input_file_id);

-- id is the batch's no * 2^32 + the line, so that one batch is one stretch of the table, appended to in order.
CREATE TABLE rows (
  id $row_id,
  custom_id $exact_text NOT NULL,
  start BIGINT NOT NULL,
  size BIGINT NOT NULL,
  state BIGINT NOT NULL DEFAULT 0,
  attempts BIGINT NOT NULL DEFAULT 0,
  returns BIGINT NOT NULL DEFAULT 0,
  lease BIGINT,
  error TEXT
) $rows_options;

CREATE TABLE answers (
  id $row_id,
  status BIGINT,
  request_id TEXT,
  code TEXT,
  message TEXT,
  body $blob NOT NULL
);

CREATE TABLE waiting (
  batch BIGINT NOT NULL,
  due DOUBLE PRECISION NOT NULL,
  line BIGINT NOT NULL,
  PRIMARY KEY (batch, due, line)
) $clustered;

CREATE TABLE leases (
  token $row_id,
  owner TEXT NOT NULL,
  batch BIGINT NOT NULL,
  until_at DOUBLE PRECISION NOT NULL,
  first_line BIGINT NOT NULL,
  last_line BIGINT NOT NULL,
  rows BIGINT NOT NULL
);

CREATE INDEX leases_of_batch ON leases (batch);

CREATE TABLE dead_letters (
  id $row_id,
  died_at DOUBLE PRECISION NOT NULL
);
