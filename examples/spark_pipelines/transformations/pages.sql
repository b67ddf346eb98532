CREATE MATERIALIZED VIEW pages AS
SELECT page, count(*) AS clicks, count(DISTINCT user) AS users FROM clicks GROUP BY page
