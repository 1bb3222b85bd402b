/*
 * What every choice costs, from estimates of some of them: for forecast.c.
 */
#ifndef ADTOPK_FORECAST_COSTS_H
#define ADTOPK_FORECAST_COSTS_H

#include "daemon/core/forecast.h"

/** Costs are what was observed; where nothing was, what that says. */
void forecast_costs_set(struct forecast_costs *costs, const struct estimates *estimates);

#endif
