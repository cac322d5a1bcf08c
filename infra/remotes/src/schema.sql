-- One row per idempotency key a service has heard of, in a forward call or as `undoes` of an undo.
CREATE TABLE IF NOT EXISTS keys (
    seq       INTEGER PRIMARY KEY,      -- the ledger's order and cursor
    service   TEXT NOT NULL,
    key       TEXT NOT NULL,
    order_id  TEXT NOT NULL,
    body_hash BLOB,                     -- of the call that was decided; null until then
    outcome   TEXT,                     -- 'applied', 'declined' or null: not decided
    answer    TEXT,                     -- the JSON answered when applied
    undone_at INTEGER,                  -- Unix milliseconds; when an effect was taken back
    tombstone INTEGER NOT NULL DEFAULT 0,
    calls     INTEGER NOT NULL DEFAULT 0,
    replays   INTEGER NOT NULL DEFAULT 0,
    UNIQUE (service, key)
);
CREATE INDEX IF NOT EXISTS keys_by_order ON keys (order_id);

-- One row per application. Nothing here is unique but the row: a double effect must show, not fail.
CREATE TABLE IF NOT EXISTS effects (
    seq        INTEGER PRIMARY KEY,
    service    TEXT NOT NULL,
    order_id   TEXT NOT NULL,
    key        TEXT NOT NULL,
    reference  TEXT NOT NULL,
    applied_at INTEGER NOT NULL,        -- Unix milliseconds
    undone_at  INTEGER                  -- Unix milliseconds
);
CREATE INDEX IF NOT EXISTS effects_by_key ON effects (key, service);

-- One row per undo key.
CREATE TABLE IF NOT EXISTS undos (
    service  TEXT NOT NULL,
    key      TEXT NOT NULL,
    order_id TEXT NOT NULL,
    undoes   TEXT NOT NULL,
    undone   INTEGER,                   -- the answer, 0 or 1; null until carried out
    calls    INTEGER NOT NULL DEFAULT 0,
    replays  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (service, key)
) WITHOUT ROWID;
