/*
 * The costs of every choice, from estimates of some of them: for forecast.c.
 */
#ifndef ADTOPK_FORECAST_COSTS_H
#define ADTOPK_FORECAST_COSTS_H

#include "daemon/planner/forecast.h"

/** Sets costs to the observed values; those without observations are derived from others. */
void forecast_costs_set(struct forecast_costs *costs, const struct estimates *estimates);

#endif
