-- The bank's search reads the rows of one account by the primary key. This index is for searches over all accounts.
CREATE INDEX IF NOT EXISTS transactions_reference ON {generation}.transactions
  USING gin (to_tsvector('simple', coalesce(row ->> 'reference', '')));

-- `cargo xtask schemas` writes this public view from the type of the rows.
CREATE OR REPLACE VIEW public."transactions" AS SELECT
  row ->> 'accountId' AS "account_id",
  (row ->> 'amount')::bigint AS "amount",
  (row ->> 'at')::timestamptz AS "at",
  (row ->> 'balance')::bigint AS "balance",
  (row ->> 'bookedOn')::date AS "booked_on",
  row ->> 'entry' AS "entry",
  row ->> 'kind' AS "kind",
  row ->> 'reference' AS "reference",
  (row ->> 'version')::numeric AS "version"
FROM {generation}."transactions" WHERE row IS NOT NULL;
